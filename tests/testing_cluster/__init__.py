"""Tests of the embedded cluster and the other tools of `picopyn.testing`."""
