"""Who lives: processes, their identity, facts taken at first sight, memory, mappings and lifetimes."""
