"""Fuzzing of everything that reads bytes from strangers; docs/testing.md says how, and what to do with a finding.

A *target* takes any bytes, gives them to one decoder, and returns whether they were accepted. It raises only when the
decoder broke a promise: another exception than the decoder's own, a value that does not encode back to itself, a second
form of something that must have one. ``test_decoders`` tries targets with Hypothesis and with what is known to be
hostile, ``guided`` lets coverage lead the way.
"""
