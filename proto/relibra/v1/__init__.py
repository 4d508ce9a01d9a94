"""The wire contract: the .proto files and the code generated from them (`make proto`, never edited by hand)."""
