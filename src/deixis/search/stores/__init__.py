"""Where the embeddings of an index are searched: FAISS in the process, or Milvus."""
