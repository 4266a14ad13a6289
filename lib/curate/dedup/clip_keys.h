/* clip_keys.h - keys of hashed clips.  Copies of a clip share some of their keys: locality-sensitive hashing.
 *
 * Each of VFM_CLIP_TABLES tables has a key for each slot: the largest coefficient and its sign in several random groups
 * of coefficients ("winner takes all": Yagnik et al., "The power of comparative reasoning", ICCV 2011).  Magnitudes are
 * scaled by their frequency.  Mirroring changes no key.
 *
 * A clip keeps the VFM_CLIP_KEYS smallest keys of all its slots (a bottom-k sketch: Cohen, Kaplan, PODC 2007), so clips
 * with a common part share keys of that part.  A clip with one key in a table also has the keys of three of its crops
 * (vfm_clip_hash_crop).
 *
 * An image with detail has VFM_IMAGE_TABLES tables.  In each it has its own key and three others: first those of its
 * boxes (media/match/image_detail.h), then those of its crops.
 */
#ifndef VFM_CURATE_DEDUP_CLIP_KEYS_H
#define VFM_CURATE_DEDUP_CLIP_KEYS_H

#include <stdint.h>

#include "media/match/clip_compare.h"
#include "media/match/clip_crop.h"
#include "media/match/clip_hash.h"

#define VFM_CLIP_TABLES  16
#define VFM_IMAGE_TABLES 32 /* including those of clips */
#define VFM_CLIP_KEYS    4  /* maximum per clip in each table */
#define VFM_CLIP_GROUPS  8  /* maximum per key */

/* Sets the keys of a clip, ascending and different; 0: no more.  Returns the number of tables with keys, which are the
 * first ones.  groups: per key, 1 to VFM_CLIP_GROUPS; with fewer groups, copies share more keys, but so do other clips.
 * x of the rows must be set.  Thread-safe. */
int vfm_clip_keys_of(uint32_t keys[VFM_IMAGE_TABLES][VFM_CLIP_KEYS], const struct vfm_clip_rows *r, int groups);

/* Returns a key of the motion of a clip, from the differences of its slots; it distinguishes clips with the same
 * background.  Returns 0 for a still clip, or one with a single slot.  Thread-safe. */
uint32_t vfm_clip_motion_key_of(const struct vfm_clip_rows *r, int table);

#endif
