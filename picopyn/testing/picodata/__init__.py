"""A cluster on this machine that speaks as Picodata does: planner, laws, protocol, storage, control."""
