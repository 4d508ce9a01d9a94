"""What a Python launcher would start, from its syntax tree. Nothing is imported or executed.

In:   the text of a launcher that builds a command line from texts.
Out:  the words of that command line; a part that only running it can tell is marked.
"""
