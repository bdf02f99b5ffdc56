"""picopyn: one Python driver for databases that speak the PostgreSQL protocol and are more than one machine.

The asynchronous facade is [`picopyn.asynchronous`][]; the names a user meets most are re-exported nowhere else, so that
every name has one home.
"""

__version__ = "4.0.0.dev0"
