/* io - options, files, formats, processes.
 *
 * Options of commands, JSON and JSON Lines, YAML, npy, files that appear whole or not at all, tars and their
 * members as inputs, sha256, tables of reports, child processes with pipes; which task of Slurm this process is.
 *
 * Used by: everyone
 * Calls: base
 * Read first: opt.h, json.h, file.h, member.h
 */
