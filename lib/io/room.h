/* io - options, files, formats, processes.
 *
 * - command lines: options and their words, configuration keys
 * - formats: JSON and JSON Lines, YAML, TOML, npy, tar; digests
 * - files that are complete or absent, inputs that are read twice, members of tars as inputs
 * - hash tables of names, tables of reports
 * - child processes with pipes, the Slurm task of this process
 * - the memory of the host, the version of the build
 *
 * Used by: everyone
 * Calls: base
 * Read first: opt.h, json.h, file.h, input.h
 */
