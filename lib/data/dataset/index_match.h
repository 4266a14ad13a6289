/* index_match.h - finds the samples of one index in another one of different order, by their ids.
 *
 * A hash join in partitions (Kitsuregawa, Tanaka and Moto-oka, 1983).  The ids of both indexes are divided by their top
 * bits into files, and a hash table of one partition after the other is built.  Its matches go into a file in the order
 * of the first index.  A query reads the file of the id's partition, so that all queries together read each file once.
 *
 * Memory: a hash table of 256 MiB up to 500 million samples of the second index, beyond in proportion.  Files,
 * unlinked, in the folder of the join: 16 bytes a sample of either index, then 16 a match.
 */
#ifndef VFM_DATA_DATASET_INDEX_MATCH_H
#define VFM_DATA_DATASET_INDEX_MATCH_H

#include <stddef.h>
#include <stdint.h>

#include "data/dataset/index.h"

struct vfm_index_match;

/* Matches the records of a from number `from` on with all of b.  dir: of the files.  table: ids of a partition, about;
 * 0: 2^23.  VFM_EUSAGE: two records of b have one id; VFM_EINPUT: a damaged index; VFM_EENV: memory or disk.  Both
 * indexes outlive the result. */
int vfm_index_match_open(struct vfm_index_match **m, const struct vfm_index *a, uint64_t from,
	const struct vfm_index *b, const char *dir, size_t table, struct vfm_err *err);
void vfm_index_match_close(struct vfm_index_match *m); /* NULL is fine */

/* Returns 1 and the record of b with the id of record n of a, or 0.  n ascends from call to call; a number may be left
 * out.  VFM_EENV: a file cannot be read. */
int vfm_index_match_find(struct vfm_index_match *m, uint64_t n, uint64_t id, uint64_t *record, struct vfm_err *err);

#endif
