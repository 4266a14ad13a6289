/* caption.h - the captions of a record, and the texts made from them.
 *
 * A record has one caption, "caption":"a red square", or several with names, "caption":{"short":"…","long":"…"}.  Its
 * texts are in "text" (one, with the keys path, sha256, …), or with the same keys in "text":{"captions":{"short":{…},
 * "long":{…}}}.  A single caption and its text have the name "".
 *
 * All pointers belong to the record.  All functions are local and thread-safe.
 */
#ifndef VFM_DATA_RECORD_CAPTION_H
#define VFM_DATA_RECORD_CAPTION_H

#include <jansson.h>
#include <stdbool.h>

#include "base/err.h"
#include "io/key.h"

#define VFM_CAPTIONS_MAX 16 /* maximum per record */
#define VFM_CAPTION_NAME 32 /* bytes of a buffer for a name */
#define VFM_TEXT_PART    48 /* bytes of a buffer for the part of a member */

/* Returns whether a name has 1 to 31 characters of a-z, 0-9, "_" and "-". */
bool vfm_caption_name_ok(const char *name);

struct vfm_captions {
	int n; /* in ascending order of their names */
	struct {
		const char *name;
		const json_t *value; /* from vfm_captions_of a string (NULL: ""), from vfm_texts_of an object */
	} list[VFM_CAPTIONS_MAX];
};

/* Lists the captions of a record; without captions, the caption "" with the name "".  VFM_EINPUT names a bad one. */
int vfm_captions_of(struct vfm_captions *c, const json_t *rec, struct vfm_err *err);
/* Lists the texts of a record; none if its "text" is not an object (records of other programs may have a string
 * there). */
int vfm_texts_of(struct vfm_captions *t, const json_t *rec, struct vfm_err *err);

/* Returns which of n >= 1 captions with these names a sample has in a step.  The probability of each is proportional to
 * its weight in w; a name that w does not list has weight 0.  If w is empty, or no caption has a weight (then *unlisted
 * is set), all are equally likely.  The choice is the uniform element 0 of the stream (seed, step, id,
 * VFM_RNG_CAPTION), scaled to the sum of weights in the order of `names`. */
int vfm_caption_choose(const struct vfm_name_weights *w, int n, const char *const *names, uint64_t seed, uint64_t step,
	uint64_t id, bool *unlisted);

/* Writes the part of a text's file or member name that follows the key: "text.npy" or "text.NAME.npy".  Returns
 * part. */
const char *vfm_text_part(char part[VFM_TEXT_PART], const char *name);
/* Returns whether `part` has the form of vfm_text_part.  Copies the name, which the caller checks, or "".  A name that
 * is too long is cut to VFM_CAPTION_NAME characters, which are still too many for a valid name. */
bool vfm_text_part_name(const char *part, char name[VFM_CAPTION_NAME + 1]);

#endif
