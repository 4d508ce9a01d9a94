"""A whole job of verl on the CPU: its model, its engine, its command line, and the lines that it writes."""
