"""The n-gram counts of a run: a file named by the manifest, mixed into what the blocks predict.

Whoever has the file computes its rows; everybody else asks a holder for them. Both give the same text.
"""
