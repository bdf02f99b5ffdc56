"""What a Picodata would plan for a statement text: pure, without sockets, storage or instances.

It shares no code with the driver's own hash and routing: both are judged by the recorded answers of real servers.
"""
