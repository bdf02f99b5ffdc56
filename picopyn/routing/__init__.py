"""Decisions about where a call goes; pure: no socket, no clock, no dialect."""
