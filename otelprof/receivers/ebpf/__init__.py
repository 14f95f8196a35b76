"""The receiver `ebpf`: samples CPUs and watches the CUDA driver from the kernel, for all processes or for some.

config.py    settings
receiver.py  the thread that reads the rings and makes batches
watch.py     which processes are targets, and what is inside each
spans.py     how the current span of a process is read
unwind.py    unwind tables for the code that samples fall into
stacks.py    stack ids of the kernel → stacks of the interner
rows.py      ring columns → rows of the tables
calls.py     driver calls: kernel names, durations of waits, probes on new libcuda files
"""
