"""What measures this machine: the only package that uses bcc, BPF, privileges and /proc."""
