"""What a bash script would call, without running anything: tree-sitter parses the script, Python evaluates it.

In:   the text of a script.
Out:  the command lines that it would start, with expanded variables; a part that only running it can tell is marked.

    script -> parse -> evaluate (words, conditions, arithmetic, builtins) -> commands

No process is started, no file is written, and no connection is opened. Assignments, arrays, `if`, `case`, `for`,
functions, here documents and `source` of files beside the script are evaluated. Any other command is recorded and has
no effect, and what is not understood is listed.
"""
