/* Reads spiece.model, the protocol buffer ModelProto of sentencepiece (sentencepiece_model.proto), and checks every
 * length.  Fields that do not change the ids are skipped. */
#include <stdlib.h>
#include <string.h>

#include "encoder/text/text_tokenizer_impl.h"

#include "base/le.h"

enum { /* field numbers */
	MODEL_PIECES = 1,
	MODEL_TRAINER = 2,
	MODEL_NORMALIZER = 3,
	PIECE_TEXT = 1,
	PIECE_SCORE = 2,
	PIECE_TYPE = 3,
	TRAINER_MODEL_TYPE = 3,
	TRAINER_UNK_ID = 40,
	NORMALIZER_CHARSMAP = 2,
};
enum { PIECE_MAX = 4096, PIECES_MAX = 4 << 20 };
enum { TYPE_NORMAL = 1, TYPE_CONTROL = 3, TYPE_USER = 4, MODEL_UNIGRAM = 1 };

/* A message that is read, or a field of it. */
struct proto {
	const uint8_t *p, *end;
	const char *path; /* for errors */
};
struct proto_field {
	unsigned number, wire;
	uint64_t value;    /* wire types 0 and 5 */
	struct proto body; /* wire type 2 */
};

static int fail_proto(const struct proto *m, struct vfm_err *err)
{
	return vfm_fail(err, VFM_EUSAGE, "%s: damaged: no sentencepiece model", m->path);
}

static int read_varint(struct proto *m, uint64_t *v, struct vfm_err *err)
{
	*v = 0;
	for (unsigned shift = 0; shift < 64 && m->p < m->end; shift += 7) {
		uint8_t b = *m->p++;

		*v |= (uint64_t)(b & 0x7f) << shift;
		if (!(b & 0x80))
			return 0;
	}
	return fail_proto(m, err);
}

static int read_fixed(struct proto *m, unsigned bytes, uint64_t *v, struct vfm_err *err)
{
	*v = 0;
	if ((size_t)(m->end - m->p) < bytes)
		return fail_proto(m, err);
	*v = vfm_read_le(m->p, bytes);
	m->p += bytes;
	return 0;
}

/* Returns 1 with the next field, or 0 at the end. */
static int read_field(struct proto *m, struct proto_field *f, struct vfm_err *err)
{
	uint64_t key, n;

	if (m->p == m->end)
		return 0;
	TRY(read_varint(m, &key, err));
	*f = (struct proto_field){.number = (unsigned)(key >> 3), .wire = key & 7};
	switch (f->wire) {
	case 0:
		TRY(read_varint(m, &f->value, err));
		break;
	case 1:
		TRY(read_fixed(m, 8, &f->value, err));
		break;
	case 2:
		TRY(read_varint(m, &n, err));
		if (n > (uint64_t)(m->end - m->p))
			return fail_proto(m, err);
		f->body = (struct proto){m->p, m->p + n, m->path};
		m->p += n;
		break;
	case 5:
		TRY(read_fixed(m, 4, &f->value, err));
		break;
	default:
		return fail_proto(m, err);
	}
	return 1;
}

static int read_piece(struct vfm_text_tokenizer *t, struct proto m, struct vfm_err *err)
{
	struct proto_field f, text = {0};
	uint64_t type = TYPE_NORMAL;
	uint32_t bits;
	float score = 0;
	size_t len;
	int rc;

	while ((rc = read_field(&m, &f, err)) > 0) {
		if (f.number == PIECE_TEXT && f.wire == 2)
			text = f;
		if (f.number == PIECE_TYPE && f.wire == 0)
			type = f.value;
		if (f.number == PIECE_SCORE && f.wire == 5) {
			bits = (uint32_t)f.value;
			memcpy(&score, &bits, sizeof(score));
		}
	}
	if (rc < 0)
		return rc;
	len = (size_t)(text.body.end - text.body.p);
	if (len > PIECE_MAX || t->model.ids >= PIECES_MAX)
		return vfm_fail(err, VFM_EUSAGE, "%s: piece %zu: %zu bytes, expected at most %d pieces of %d bytes",
			m.path, t->model.ids, len, PIECES_MAX, PIECE_MAX);
	if (type == TYPE_CONTROL || type == TYPE_USER) {
		char *name = vfm_strfmt("%.*s", (int)len, (const char *)text.body.p);

		tokenizer_add(t, name, (int32_t)t->model.ids, false, false);
		free(name);
	}
	vfm_unigram_add(&t->model, (const char *)text.body.p, len, (double)score);
	return 0;
}

static int read_trainer(struct vfm_text_tokenizer *t, struct proto m, struct vfm_err *err)
{
	struct proto_field f;
	uint64_t type = MODEL_UNIGRAM;
	int rc;

	while ((rc = read_field(&m, &f, err)) > 0) {
		if (f.wire != 0)
			continue;
		if (f.number == TRAINER_MODEL_TYPE)
			type = f.value;
		if (f.number == TRAINER_UNK_ID)
			t->model.unk_id = (int32_t)f.value;
	}
	if (rc == 0 && type != MODEL_UNIGRAM)
		return vfm_fail(err, VFM_EUSAGE,
			"%s: trainer_spec.model_type %llu; only unigram models (1) are supported", m.path,
			(unsigned long long)type);
	return rc;
}

static int read_normalizer(struct vfm_text_tokenizer *t, struct proto m, struct vfm_err *err)
{
	struct proto_field f;
	int rc;

	while ((rc = read_field(&m, &f, err)) > 0)
		if (f.number == NORMALIZER_CHARSMAP && f.wire == 2 && f.body.p < f.body.end) {
			vfm_charsmap_release(&t->charsmap);
			TRY(vfm_charsmap_init(&t->charsmap, f.body.p, (size_t)(f.body.end - f.body.p), m.path, err));
		}
	return rc;
}

int tokenizer_read_spm(struct vfm_text_tokenizer *t, const char *path, const char *data, size_t len, int64_t extra_ids,
	struct vfm_err *err)
{
	struct proto m = {(const uint8_t *)data, (const uint8_t *)data + len, path};
	struct proto_field f;
	int rc;

	while ((rc = read_field(&m, &f, err)) > 0) {
		if (f.wire != 2)
			continue;
		if (f.number == MODEL_PIECES)
			TRY(read_piece(t, f.body, err));
		else if (f.number == MODEL_TRAINER)
			TRY(read_trainer(t, f.body, err));
		else if (f.number == MODEL_NORMALIZER)
			TRY(read_normalizer(t, f.body, err));
	}
	if (rc < 0)
		return rc;
	for (int64_t i = extra_ids - 1; i >= 0; i--) {
		char *name = vfm_strfmt("<extra_id_%lld>", (long long)i);

		tokenizer_add(t, name, (int32_t)t->model.ids, false, false);
		vfm_unigram_add(&t->model, name, strlen(name), 0);
		free(name);
	}
	if (t->charsmap.n_units)
		t->step[t->n_steps++].kind = STEP_CHARSMAP;
	t->split_space = t->split_words = true;
	TRY(vfm_unigram_finish(&t->model, path, err));
	t->eos = vfm_unigram_find(&t->model, "</s>", 4);
	if (t->eos < 0)
		return vfm_fail(err, VFM_EUSAGE, "%s: no piece </s>", path);
	tokenizer_add(t, "<unk>", t->model.unk_id, false, false);
	return 0;
}
