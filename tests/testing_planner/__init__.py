"""Tests of the planner behind the embedded Picodata-shaped cluster."""
