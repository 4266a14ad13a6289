/* sample_key.h - keys of samples: which are valid, and their hashes.  sample_set.h finds duplicates.
 *
 * A key is the "id" of a record.  It names files (ID.latent.npy, ID.mp4) and members of shards (KEY.json), and its hash
 * (vfm_sample_id) is the sample's number in the index and in all random draws.
 */
#ifndef VFM_DATA_RECORD_SAMPLE_KEY_H
#define VFM_DATA_RECORD_SAMPLE_KEY_H

#include <stdint.h>

#include "base/err.h"

/* The rule for keys that become file names: 1 to 200 bytes of UTF-8, not beginning with "__".  Of the ASCII characters
 * only letters, digits, "-" and "_" are allowed: WebDataset and Energon want neither "." nor "/".  VFM_EINPUT
 * otherwise; NULL is a record without id. */
int vfm_sample_key_check(const char *key, struct vfm_err *err);

/* The rule for the names of members (KEY.PART) of shards that other programs wrote: 1 to 1000 bytes of UTF-8 without
 * control characters.  Folders are allowed ("dir/0001.json", "./0001.json"), but no leading "/", no empty part of the
 * path and no part "..".  Nothing uses such a name as a path.  VFM_EINPUT otherwise. */
int vfm_sample_member_check(const char *name, struct vfm_err *err);

/* The first 16 bytes of sha256(key), as two numbers; vfm_sample_id is the first. */
void vfm_sample_hash(const char *key, uint64_t hash[2]);
uint64_t vfm_sample_id(const char *key);

#endif
