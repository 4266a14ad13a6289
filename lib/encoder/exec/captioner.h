/* captioner.h - captions of clips from an outside model: finds missing captions, requests them for windows, and
 * combines them. */
#ifndef VFM_ENCODER_EXEC_CAPTIONER_H
#define VFM_ENCODER_EXEC_CAPTIONER_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "data/record/caption.h"
#include "encoder/exec/outside.h"

#define VFM_CAPTION_ORIGINAL "original" /* name of the caption that existed before named ones were added */

struct vfm_captioner { /* a specification; read by many threads */
	int n_prompts; /* 0 < n <= VFM_CAPTIONS_MAX */
	struct {
		char name[VFM_CAPTION_NAME]; /* "" for a single prompt: the caption is a string */
		char *prompt;
	} prompts[VFM_CAPTIONS_MAX];
	int64_t window; /* frames of a window; 0: the whole clip */
	bool overwrite; /* replace existing captions; otherwise keep them and request only missing names */
};

/* Sets a single prompt without a name. */
void vfm_captioner_prompt(struct vfm_captioner *c, const char *prompt);
/* Reads {"NAME":"PROMPT",…}.  VFM_EUSAGE names file and key. */
int vfm_captioner_prompts(struct vfm_captioner *c, const char *path, struct vfm_err *err);
void vfm_captioner_release(struct vfm_captioner *c);
/* Returns everything that affects the captions, as text; the caller frees it. */
char *vfm_captioner_text(const struct vfm_captioner *c);

/* Requests the missing captions of rec from the children and sets "caption" and "caption_maker".  With windows, also
 * sets "windows": [{start_frame, end_frame, caption}], counted from the first frame of the clip, and "caption" joins
 * their captions with blanks.  A string that existed before named captions gets the name "original".
 *
 * "caption_maker" is the identity of the captioner if the caption is a string; for named captions, it is an object of
 * the known identities by name.  Captions that are kept retain their captioners and windows; those of replaced captions
 * are deleted.  VFM_EINPUT: an answer has no caption, or the record has too many. */
int vfm_captioner_run(const struct vfm_captioner *c, struct vfm_exec_slot *slot, const struct vfm_hello *h,
	const struct vfm_outside_view *view, json_t *rec, struct vfm_err *err);

#endif
