"""Texts as token ids: the tokenizer's file, files of text, and the columns that a network's inputs take."""
