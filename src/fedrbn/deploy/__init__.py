"""A federation on several machines: certificates and keys, a folder for each machine, and a fleet on this one."""
