/* curate.h - the stages of vfm-curate: one file each, one line each in main.c's table.
 *
 * A stage gets argv with argv[0] = its own name, and returns the exit status.
 */
#ifndef VFM_CURATE_H
#define VFM_CURATE_H

int curate_probe(int argc, char **argv);
int curate_split(int argc, char **argv);
int curate_clip(int argc, char **argv);
int curate_score(int argc, char **argv);
int curate_filter(int argc, char **argv);
int curate_sheet(int argc, char **argv);
int curate_stats(int argc, char **argv);

#endif
