"""`POST /events`: usage that engines which are not ours report, with a metering key."""
