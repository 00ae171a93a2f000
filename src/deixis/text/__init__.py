"""Words and sentences: tokens, vocabulary, word vectors, Fisher vectors, tf-idf, phrases, entity types, trees."""
