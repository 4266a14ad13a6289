/* embed - vectors of clips and captions, for semantic deduplication, search and evaluation. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "curate.h"
#include "data/record/binding.h"
#include "data/record/caption.h"
#include "data/record/sample_key.h"
#include "encoder/exec/payload.h"
#include "exec_stage.h"
#include "io/file.h"
#include "io/opt.h"

struct embed {
	struct exec_stage model;
	const char *dir;
	const char *of; /* as given; NULL: "clips" */
	bool clips, captions;
	pthread_mutex_t lock;
	struct vfm_npy first; /* shape and dtype of the first vector; ndim 0: not yet; guarded by lock */
};

/* Vectors of one model can be compared: all have the dimension and the dtype of the first. */
static int check_vector(struct embed *e, const struct vfm_npy *npy, struct vfm_err *err)
{
	struct vfm_npy first;

	pthread_mutex_lock(&e->lock);
	if (e->first.ndim == 0)
		e->first = *npy;
	first = e->first;
	pthread_mutex_unlock(&e->lock);
	if (npy->shape[0] == first.shape[0] && npy->type == first.type)
		return 0;
	return vfm_fail(err, VFM_EINPUT, "vector: expected [%lld] of %s, as of the first record, got [%lld] of %s",
		(long long)first.shape[0], vfm_npy_type_name(first.type), (long long)npy->shape[0],
		vfm_npy_type_name(npy->type));
}

/* Writes a vector to DIR/ID.PART.npy.  *entry describes it, and the caller owns it. */
static int write_vector(struct embed *e, const char *id, const char *part, const struct vfm_npy *npy, const void *data,
	json_t **entry, struct vfm_err *err)
{
	struct vfm_encoder_id model = vfm_outside_id(vfm_exec_hello(e->model.exec));
	char sha256[VFM_SHA256_HEX], *path;
	int rc;

	TRY(check_vector(e, npy, err));
	path = vfm_strfmt("%s/%s.%s.npy", e->dir, id, part);
	rc = vfm_npy_save(path, npy, data, sha256, err);
	if (rc >= 0)
		*entry = json_pack("{s:s,s:s,s:[I],s:s,s:o}", "path", path, "sha256", sha256, "shape",
			(json_int_t)npy->shape[0], "dtype", vfm_npy_type_name(npy->type), "maker",
			vfm_encoder_id_json(&model));
	free(path);
	return rc;
}

static int embed_clip(struct embed *e, json_t *rec, const char *id, struct vfm_exec_slot *slot, struct vfm_err *err)
{
	struct vfm_npy npy;
	const void *data;
	json_t *entry;

	TRY(exec_stage_vector(&e->model, slot, rec, &npy, &data, err));
	TRY(write_vector(e, id, "embedding", &npy, data, &entry, err));
	json_object_set_new(rec, "embedding", entry);
	return 0;
}

/* Embeds the caption `name` of a record; "" is the only one. */
static int embed_caption_of(struct embed *e, const char *id, const char *name, const json_t *caption,
	struct vfm_exec_slot *slot, json_t **entry, struct vfm_err *err)
{
	char *part = vfm_strfmt("text_embedding%s%s", *name ? "." : "", name), sha256[VFM_SHA256_HEX];
	struct vfm_npy npy;
	const void *data;
	int rc;

	TRY_OUT(vfm_outside_ask(
		slot, VFM_EXEC_EMBED_TEXT, json_pack("{s:O}", "text", caption), (int64_t[]){0}, &npy, &data, err));
	TRY_OUT(write_vector(e, id, part, &npy, data, entry, err));
	vfm_caption_sha256(caption, sha256);
	json_object_set_new(*entry, "caption_sha256", json_string(sha256));
out:
	free(part);
	return rc;
}

static int embed_captions(struct embed *e, json_t *rec, const char *id, struct vfm_exec_slot *slot, struct vfm_err *err)
{
	json_t *entry = NULL, *several;
	struct vfm_captions c;
	int rc = 0;

	TRY(vfm_captions_of(&c, rec, err));
	if (!c.list[0].value)
		return vfm_fail(err, VFM_EINPUT, "caption: missing (--of captions)");
	if (!*c.list[0].name) {
		TRY(embed_caption_of(e, id, "", c.list[0].value, slot, &entry, err));
		json_object_set_new(rec, "text_embedding", entry);
		return 0;
	}
	several = json_object();
	for (int i = 0; i < c.n && rc >= 0; i++) {
		rc = embed_caption_of(e, id, c.list[i].name, c.list[i].value, slot, &entry, err);
		if (rc >= 0)
			json_object_set_new(several, c.list[i].name, entry);
	}
	if (rc >= 0)
		json_object_set_new(rec, "text_embedding", json_pack("{s:O}", "captions", several));
	json_decref(several);
	return rc;
}

static int embed_record(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	struct embed *e = ctx;
	struct vfm_exec_slot *slot = vfm_exec_slot(e->model.exec, worker);
	const char *id = vfm_rec_str(rec, "id", NULL);

	(void)out;
	TRY(vfm_sample_key_check(id, err));
	if (e->clips)
		TRY(embed_clip(e, rec, id, slot, err));
	return e->captions ? embed_captions(e, rec, id, slot, err) : 0;
}

/* Parses --of. */
static int parse_embed_list(struct embed *e, struct vfm_err *err)
{
	const char *of = e->of ? e->of : "clips", *p = of;

	while (p) {
		size_t n = strcspn(p, ",");

		if (n == 5 && !strncmp(p, "clips", n))
			e->clips = true;
		else if (n == 8 && !strncmp(p, "captions", n))
			e->captions = true;
		else
			return vfm_fail(
				err, VFM_EUSAGE, "--of: expected clips, captions or clips,captions, got '%s'", of);
		p = p[n] ? p + n + 1 : NULL;
	}
	e->model.more_ops = e->captions ? VFM_EXEC_EMBED_TEXT : 0;
	e->model.shows_nothing = !e->clips;
	if (!e->clips && (e->model.frames || e->model.fps > 0))
		return vfm_fail(err, VFM_EUSAGE, "--frames, --fps: --of captions shows no frames");
	return 0;
}

int curate_embed(int argc, char **argv, struct vfm_err *err)
{
	const char *outputs[3] = {0};
	struct embed e = {.model = {.opts = VFM_EXEC_DEFAULTS, .timeout_s = 3600}, .lock = PTHREAD_MUTEX_INITIALIZER};
	struct vfm_stage stage = {
		.name = "embed", .fn = embed_record, .ctx = &e, .unique_ids = true, .outputs = outputs};
	struct vfm_opt opts[] = {
		{VFM_OPT_TEXT, 'd', "dir", "DIR", "write ID.embedding.npy, ID.text_embedding.npy into DIR", &e.dir,
			.required = true},
		{VFM_OPT_STR, 0, "of", "LIST", "clips (default), captions, or clips,captions", &e.of},
		EXEC_STAGE_OPTS(&e.model),
		VFM_TIMEOUT_OPT("give up on reading a clip after so long (default 3600)", &e.model.timeout_s),
		VFM_EXEC_OPTS(&e.model.opts),
		VFM_STAGE_OPTS(&stage.opts),
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate embed",
		.synopsis = "-d DIR --exec CMD [OPTION ...] [FILE ...]",
		.summary = "compute vectors of clips and captions with an outside model",
		.opts = opts,
		.stage = &exec_stage_traits,
	};
	int rc = curate_parse(&cmd, &stage, argc, argv, err);

	if (rc != 0)
		return rc;
	TRY(parse_embed_list(&e, err));
	TRY(vfm_mkdir_p(e.dir, err));
	outputs[0] = e.clips ? "embedding" : "text_embedding";
	outputs[1] = e.clips && e.captions ? "text_embedding" : NULL;
	return exec_stage_run(
		&e.model, &stage, e.clips ? "embed" : "embed-text", e.clips && e.captions ? "and captions" : NULL, err);
}
