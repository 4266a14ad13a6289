/* hello.h - the first line of a child, which describes the model and its capabilities (vfm-exec(7)).  Plain data after
 * parsing. */
#ifndef VFM_ENCODER_EXEC_HELLO_H
#define VFM_ENCODER_EXEC_HELLO_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "io/hash.h"
#include "spec/model/geometry.h"

#define VFM_EXEC_PROTOCOL 1

enum vfm_exec_op {
	VFM_EXEC_CAPTION = 1,
	VFM_EXEC_SCORE = 2,
	VFM_EXEC_EMBED = 4,
	VFM_EXEC_TEXT_ENCODE = 8,
	VFM_EXEC_ENCODE = 16,
	VFM_EXEC_DECODE = 32,
	VFM_EXEC_ENCODE_GIVEN = 64, /* an encoder that supports "given": pictures of a condition */
	VFM_EXEC_IMAGE_ENCODE = 128,
	VFM_EXEC_ENCODE_GIVEN_LAST = 256, /* an encoder that also supports "given_last" */
	VFM_EXEC_EMBED_TEXT = 512,
	VFM_EXEC_SHOTS = 1024,
	/* ops whose answers have an array */
	VFM_EXEC_ARRAY_OPS = VFM_EXEC_EMBED | VFM_EXEC_TEXT_ENCODE | VFM_EXEC_ENCODE | VFM_EXEC_DECODE |
		VFM_EXEC_IMAGE_ENCODE | VFM_EXEC_EMBED_TEXT | VFM_EXEC_SHOTS,
};

enum vfm_exec_fit { VFM_EXEC_COVER, VFM_EXEC_CONTAIN, VFM_EXEC_STRETCH };
extern const char *const vfm_exec_fit_names[]; /* by enum vfm_exec_fit; NULL-terminated */

/* The form in which a captioner, scorer or embedder receives a clip. */
struct vfm_exec_input {
	bool clip;          /* only the path; otherwise frames: */
	int64_t frames;     /* evenly spaced; 0: by rate */
	double fps;         /* 0: every frame */
	int64_t max_frames; /* by rate; 0: no limit */
	int width, height;  /* of the frames; 0, 0: the source's */
	enum vfm_exec_fit fit;
};

/* The input of a shot detector: windows of consecutive frames.  It answers for the frames in the middle of each
 * window. */
struct vfm_exec_windows {
	int64_t width, height;
	int64_t frames; /* of a window */
	int64_t margin; /* frames at either end that are only context; 2 margin < frames */
};

struct vfm_hello {
	char name[64], version[32], sha256[VFM_SHA256_HEX];
	unsigned ops; /* bits of enum vfm_exec_op */
	int batch;    /* requests that the child processes at once, >= 1 */
	struct vfm_exec_input input;
	struct vfm_geometry geometry;     /* of a tokenizer, if ops has encode or decode */
	double min, max;                  /* of its latents; both 0: not checked */
	int64_t text_dim;                 /* if ops has text-encode */
	int64_t text_rows, text_max_rows; /* rows 0: depends on the text, at most max_rows */
	int64_t image_dim, image_rows;    /* per picture, if ops has image-encode */
	struct vfm_exec_windows shots;    /* if ops has shots */
};

/* Return the bit of "caption", …, or 0 if it is unknown; return the name of a bit. */
unsigned vfm_exec_op_of(const char *name);
const char *vfm_exec_op_name(unsigned op);

/* Parses `o`, which may be any JSON value.  VFM_EUSAGE names the key: "hello.tokenizer.stride: expected …".  Ignores
 * unknown keys of the hello and refuses those of its objects. */
int vfm_hello_parse(struct vfm_hello *h, const json_t *o, struct vfm_err *err);

#endif
