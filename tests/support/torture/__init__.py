"""``make torture``: attacks on runs, files, models, servers, parsers and tools.

``PYTHONPATH=tests/support python -m torture --seed 7`` prints a table. An attack is a module with
one function that yields cases; ``attacks.py`` lists them.
"""
