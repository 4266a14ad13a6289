/* comm/launch - start of ranks.
 *
 * A plain start, local forks, or Slurm's PMI2: the number of this process among how many, on which node.
 *
 * Used by: comm/host, train/job
 * Calls: base, io
 * Read first: launch.h
 */
