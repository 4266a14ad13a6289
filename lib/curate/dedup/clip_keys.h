/* clip_keys.h - keys of hashed clips.  Copies of a clip share some of their keys: locality-sensitive hashing.
 *
 * Each of VFM_CLIP_TABLES tables has a key for each slot: in several random groups of coefficients, the largest one
 * and its sign ("winner takes all": Yagnik et al., "The power of comparative reasoning", ICCV 2011).  Magnitudes are
 * scaled by their frequency.  Mirroring changes no key.
 *
 * A clip keeps the VFM_CLIP_KEYS least keys of all its slots (a bottom-k sketch: Cohen, Kaplan, PODC 2007), so clips
 * that share a part share keys of it.  A clip with one key in a table also has the keys of three of its crops
 * (vfm_clip_hash_crop).
 *
 * An image with detail has VFM_IMAGE_TABLES tables, and in each its key and three others: of its boxes
 * (media/match/image_detail.h) first, then of its crops.
 */
#ifndef VFM_CURATE_DEDUP_CLIP_KEYS_H
#define VFM_CURATE_DEDUP_CLIP_KEYS_H

#include <stdint.h>

#include "media/match/clip_compare.h"
#include "media/match/clip_crop.h"
#include "media/match/clip_hash.h"

#define VFM_CLIP_TABLES  16
#define VFM_IMAGE_TABLES 32 /* those of clips among them */
#define VFM_CLIP_KEYS    4  /* of a clip in each table, at most */
#define VFM_CLIP_GROUPS  8  /* of a key, at most */

/* Sets the keys of a clip, ascending and different; 0: no more.  Returns the number of tables that have some: the first
 * ones.  groups: of a key, 1 to VFM_CLIP_GROUPS; with fewer, copies share more keys, and so do other clips.  x of the
 * rows must be set.  Thread-safe. */
int vfm_clip_keys_of(uint32_t keys[VFM_IMAGE_TABLES][VFM_CLIP_KEYS], const struct vfm_clip_rows *r, int groups);

/* Returns a key of the motion of a clip, of the differences of its slots: it divides clips before one background.
 * 0: they are still, or one slot.  Thread-safe. */
uint32_t vfm_clip_motion_key_of(const struct vfm_clip_rows *r, int table);

#endif
