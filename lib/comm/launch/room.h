/* comm/launch - start of ranks.
 *
 * A plain start, local forks, or Slurm's PMI2: the number of this process among how many, on which node.
 *
 * Used by: data/record for shares of records, train/job for ranks
 * Calls: base
 * Read first: launch.h, step.h
 */
