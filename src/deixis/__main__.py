from deixis.cli import main

main()
