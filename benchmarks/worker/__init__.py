"""The measured side: one process that holds clients and runs blocks of calls when told.

It is started as a script (`python benchmarks/worker …`), also by a Python of another environment, so nothing here may
import the rest of `benchmarks`, nor picopyn outside of the client that needs it.
"""
