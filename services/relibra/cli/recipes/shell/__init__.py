"""What a bash script would call, without running anything: the script is parsed and evaluated in Python.

In:   the text of a script.
Out:  the command lines that it would start, with expanded variables; a part that only running it can tell is marked.

    script -> syntax (words, parser) -> evaluate (expand, conditions, arithmetic) -> commands

No process is started, no file is written, and no connection is opened. Assignments, arrays, `if`, `case`, `for`,
functions, here documents and `source` of files beside the script are evaluated. Any other command is recorded and has
no effect.
"""
