"""How a result is shown: tables, text, pictures in the terminal and in files."""
