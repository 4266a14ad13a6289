/* comm/launch - the start of ranks: plain, by local forks, or by Slurm's PMI2.  Determines the rank of this process,
 * the number of ranks, and their nodes.
 *
 * Used by: comm/host, train/job
 * Calls: base, io
 * Read first: launch.h
 */
