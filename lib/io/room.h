/* io - options, files, formats, processes.
 *
 * Options of commands, keys of configurations, JSON and JSON Lines, YAML, npy, sha256, hash tables of names, tables of
 * reports.  Files that appear whole or not at all, inputs that are read twice, tars and their members as inputs.  Child
 * processes with pipes, words of a command line.  The memory of the host, the build, the Slurm task of this process.
 *
 * Used by: everyone
 * Calls: base
 * Read first: opt.h, json.h, file.h, input.h
 */
