/* sample_key.h - keys of samples: their validity and hashes.  sample_set.h finds duplicates.
 *
 * A key is the "id" of a record.  It names files (ID.latent.npy, ID.mp4) and members of shards (KEY.json).  Its hash
 * (vfm_sample_id) identifies the sample in the index and in all random draws.
 */
#ifndef VFM_DATA_RECORD_SAMPLE_KEY_H
#define VFM_DATA_RECORD_SAMPLE_KEY_H

#include <stdint.h>

#include "base/err.h"

/* Checks a key that becomes a file name: 1 to 200 bytes of UTF-8, not beginning with "__"; the only ASCII characters
 * are letters, digits, "-" and "_", since WebDataset and Energon allow neither "." nor "/".  VFM_EINPUT otherwise, also
 * for NULL, a record without id. */
int vfm_sample_key_check(const char *key, struct vfm_err *err);

/* Checks the name of a member (KEY.PART) in a shard of another program: 1 to 1000 bytes of UTF-8 without control
 * characters.  Folders are allowed ("dir/0001.json", "./0001.json"), but no leading "/", no empty component and no
 * "..".  Nothing uses such a name as a path.  VFM_EINPUT otherwise. */
int vfm_sample_member_check(const char *name, struct vfm_err *err);

/* Sets hash to the first 16 bytes of sha256(key), as two numbers; vfm_sample_id returns the first. */
void vfm_sample_hash(const char *key, uint64_t hash[2]);
uint64_t vfm_sample_id(const char *key);

#endif
