"""Tests of `picopyn.topology`."""
