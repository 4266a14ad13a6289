/* host_memory.h - the memory of the host that this process may use. */
#ifndef VFM_IO_HOST_MEMORY_H
#define VFM_IO_HOST_MEMORY_H

/* Returns the smaller of the physical memory and vfm_cgroup_limit of this process, in bytes.  The processes of a job
 * step on one node share it. */
double vfm_host_memory(void);

/* Returns the smallest memory limit, in bytes, of the control groups that a file in the format of /proc/self/cgroup
 * names, and of their ancestors; INFINITY if there is none.  Version 2 groups lie below `root`, version 1 groups below
 * `root`/memory.  Slurm sets such limits for jobs and steps (ConstrainRAMSpace).  Missing and unreadable files set no
 * limit. */
double vfm_cgroup_limit(const char *groups, const char *root);

#endif
