"""Chat templates, tool-call formats and their parsers."""
