/* shard_cache.h - a bounded local copy of remote shards.
 *
 * A shard that is not next to its index is fetched to a folder of the local disk (fetch.h).  The URL is BASE/SHARD.
 * "{set}" in BASE becomes the name of the set in the plan or, in a join, of the shard's folder.  If the shards exceed
 * the bound, the least recently opened are removed.
 *
 * Any number of processes may use one folder: one of them fetches a shard while the others wait.  A killed process
 * leaves nothing permanent.
 *
 * A copy of the wrong length, or in which a reader finds a fault (vfm_shard_cache_renew), is replaced.  One process
 * downloads it again, once: a fault in the second download is the server's.  Running processes remember such a fault;
 * the next run that opens the cache forgets it.  Runs whose indexes give a shard different lengths remember their own
 * faults.
 */
#ifndef VFM_DATA_DATASET_SHARD_CACHE_H
#define VFM_DATA_DATASET_SHARD_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "io/opt.h"

struct vfm_shard_cache;

struct vfm_shard_cache_opts {
	const char *url;     /* BASE; NULL: no cache */
	const char *dir;     /* the folder; created if missing */
	double gib;          /* maximum for all shards in the folder */
	const char *command; /* NULL: only http and https */
};

/* Rows of a struct vfm_opt table; `o` is a struct vfm_shard_cache_opts *. */
#define VFM_SHARD_CACHE_OPTS(o)                                                                                        \
	{VFM_OPT_STR, 0, "remote", "URL", "fetch shards not next to their index from URL/SHARD", &(o)->url},           \
		{VFM_OPT_STR, 0, "cache", "DIR", "keep fetched shards in DIR", &(o)->dir},                             \
		{VFM_OPT_NUM, 0, "cache-gib", "N", "at most N GiB of them", &(o)->gib},                                \
	{                                                                                                              \
		VFM_OPT_STR, 0, "fetch", "CMD", "run CMD URL FILE to fetch a shard, instead of HTTP", &(o)->command    \
	}
/* Sets *c to NULL without a URL.  Copies the options.  Call it while the process has few threads (fetch.h).
 * VFM_EUSAGE: there is no folder or bound, or the command cannot be split into words. */
int vfm_shard_cache_open(struct vfm_shard_cache **c, const struct vfm_shard_cache_opts *o, struct vfm_err *err);
void vfm_shard_cache_close(struct vfm_shard_cache *c); /* no-op for NULL */

/* Returns whether URLs depend on the name of the set. */
bool vfm_shard_cache_names_set(const struct vfm_shard_cache *c);

/* Returns a descriptor of a shard of `bytes`, and fetches it if needed.  Thread-safe.  VFM_EENV: it cannot be fetched,
 * is larger than the cache, or the folder cannot be used; VFM_EINPUT: it had the wrong size, twice. */
int vfm_shard_cache_get(
	struct vfm_shard_cache *c, const char *set, const char *shard, uint64_t bytes, struct vfm_err *err);
/* Call if the file behind vfm_shard_cache_get's fd is truncated or contradicts the index.  Returns 1 if the shard was
 * downloaded again, by this or another process; the caller then opens and reads it anew.  Returns 0 if it was
 * downloaded again before, so that the fault is permanent, or if fd is not of this cache.  Thread-safe.  Errors as for
 * vfm_shard_cache_get. */
int vfm_shard_cache_renew(
	struct vfm_shard_cache *c, const char *set, const char *shard, uint64_t bytes, int fd, struct vfm_err *err);

#endif
