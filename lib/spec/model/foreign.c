/* foreign.c - maps tensors of other programs to ours by patterns, and infers dimensions from shapes. */
#include "spec/model/foreign_impl.h"

#include <ctype.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOT_GIVEN "neither config.json nor the tensors give %s"

enum { BLOCKS_MAX = 1024 };

/* ---- shapes ---- */

#define OFF(f) offsetof(struct vfm_model_spec, f)

/* The dimensions that shapes determine. */
static const struct {
	char letter;
	size_t off;
} dims_of_letters[] = {{'D', OFF(hidden)}, {'M', OFF(ffn)}, {'E', OFF(text_dim)}, {'C', OFF(channels)},
	{'X', OFF(cond_channels)}, {'I', OFF(image_dim)}, {'L', OFF(image_pos)}, {'t', OFF(patch[0])},
	{'h', OFF(patch[1])}, {'w', OFF(patch[2])}, {'R', OFF(adaln_lora)}, {'Z', OFF(text2_dim)},
	{'N', OFF(refiner_layers)}, {'K', OFF(text_proj)}, {'Y', OFF(text_proj)}, {'S', OFF(single_layers)},
	{'G', OFF(guidance_dim)}};
enum { N_LETTERS = sizeof(dims_of_letters) / sizeof(dims_of_letters[0]) };

int64_t *vfm_foreign_dim(struct vfm_model_spec *m, char letter)
{
	for (int i = 0; i < N_LETTERS; i++)
		if (dims_of_letters[i].letter == letter)
			return (int64_t *)(void *)((char *)m + dims_of_letters[i].off);
	return NULL;
}

/* Returns the path of the key whose value is at `off`; NULL: patch[1] and patch[2] have none of their own. */
static const char *key_at_offset(size_t off)
{
	for (int i = 0; i < vfm_model_n_keys; i++)
		if (vfm_model_keys[i].off == off)
			return vfm_model_keys[i].path;
	return NULL;
}

/* Reads one dimension "3D" of a shape; sets the factor and the letter (0: none).  Returns the rest of the text. */
static const char *next_dim(const char *p, int64_t *factor, char *letter)
{
	*factor = isdigit((unsigned char)*p) ? 0 : 1;
	for (; isdigit((unsigned char)*p); p++)
		*factor = *factor * 10 + (*p - '0');
	*letter = isalpha((unsigned char)*p) ? *p++ : 0;
	return *p == ',' ? p + 1 : p;
}

int64_t vfm_foreign_inputs(const struct vfm_model_spec *m)
{
	return m->channels + m->cond_channels + vfm_model_given_dim(m) / (m->patch[0] * m->patch[1] * m->patch[2]);
}

static int64_t value_of_letter(const struct vfm_model_spec *m, char letter)
{
	struct vfm_model_spec copy = *m;

	switch (letter) {
	case 0:
		return 1;
	case 'F':
		return vfm_model_patch_dim(m);
	case 'P':
		return vfm_model_input_dim(m);
	case 'X':
		return vfm_foreign_inputs(m);
	case 'T':
		return VFM_TIME_FEATURES;
	case 'H':
		return vfm_model_head_dim(m);
	case 'Y':
		return vfm_model_context_dim(m);
	default:
		return *vfm_foreign_dim(&copy, letter);
	}
}

/* Reads a shape, up to the end of the text or the next of a list. */
static int read_shape(const char *text, const struct vfm_model_spec *m, int64_t *shape)
{
	int ndim = 0;

	while (*text && *text != '|') {
		int64_t factor;
		char letter;

		text = next_dim(text, &factor, &letter);
		shape[ndim++] = factor * value_of_letter(m, letter);
	}
	return ndim;
}

/* Returns the path of the key that a letter stands for; NULL: none. */
static const char *key_of_letter(char letter)
{
	for (int i = 0; i < N_LETTERS; i++)
		if (dims_of_letters[i].letter == letter)
			return key_at_offset(dims_of_letters[i].off);
	return NULL;
}

/* Returns the key of a dimension that is 0 although a row of all models has it; NULL: none. */
static const char *lacking_key(const struct vfm_model_spec *m)
{
	for (const struct vfm_foreign_row *r = vfm_model_arch(m)->foreign->rows; r->ours; r++)
		for (const char *p = r->needs || r->count ? "" : r->shape; *p;) {
			int64_t factor;
			char letter;

			p = next_dim(p + (*p == '|'), &factor, &letter);
			if (value_of_letter(m, letter) == 0)
				return key_of_letter(letter);
		}
	return NULL;
}

/* ---- names ---- */

/* Sets *len to the length of the first name of a list; returns the rest, or NULL after the last. */
static const char *next_in_list(const char *list, size_t *len)
{
	*len = strcspn(list, "|");
	return list[*len] ? list + *len + 1 : NULL;
}

static int count_names(const char *list)
{
	int n = 1;

	for (; (list = strchr(list, '|')) != NULL; list++)
		n++;
	return n;
}

/* Appends the name of a pattern [len], with the number of the block for "%d". */
static void add_pattern_name(struct vfm_buf *b, const char *pattern, size_t len, int64_t block)
{
	for (size_t i = 0; i < len; i++) {
		if (pattern[i] == '%') {
			vfm_buf_addf(b, "%lld", (long long)block);
			i++; /* the d */
		} else {
			vfm_buf_add(b, pattern + i, 1);
		}
	}
}

static char *expand_name(struct vfm_arena *arena, const char *pattern, size_t len, int block, const char *suffix)
{
	struct vfm_buf b = {0};
	char *name;

	add_pattern_name(&b, pattern, len, block);
	vfm_buf_adds(&b, suffix);
	name = vfm_arena_strdup(arena, b.data);
	vfm_buf_release(&b);
	return name;
}

/* If `name` is the pattern with a number for "%d", returns the number, else -1. */
static int64_t block_of(const char *pattern, const char *name)
{
	size_t len = strcspn(pattern, "%");
	int64_t v = 0;

	if (!pattern[len] || strncmp(pattern, name, len) != 0 || !isdigit((unsigned char)name[len]))
		return -1;
	for (name += len; isdigit((unsigned char)*name); name++)
		if ((v = v * 10 + (*name - '0')) >= BLOCKS_MAX)
			return -1;
	return strcmp(name, pattern + len + 2) == 0 ? v : -1;
}

/* The blocks of a row with %d: our first, and their number. */
struct row_blocks {
	int64_t first, n;
};

static struct row_blocks blocks_of_row(const struct vfm_model_spec *m, const struct vfm_foreign_row *r)
{
	struct vfm_model_spec copy = *m;
	const int64_t doubles = m->layers - m->single_layers;

	if (!strchr(r->ours, '%'))
		return (struct row_blocks){0, 1};
	if (!r->count)
		return (struct row_blocks){0, doubles};
	return (struct row_blocks){r->count == 'S' ? doubles : 0, *vfm_foreign_dim(&copy, r->count)};
}

/* ---- the map ---- */

struct expansion {
	struct vfm_foreign_map *map;
	const struct vfm_model_spec *m;
	int layout;
	size_t ours_cap, theirs_cap, copies_cap;
};

/* Appends a tensor to a list; returns its index. */
static int add_foreign_tensor(
	struct vfm_foreign_tensor **v, int *n, size_t *cap, char *name, int ndim, const int64_t *shape)
{
	struct vfm_foreign_tensor *t;

	vfm_grow(v, cap, (size_t)*n + 1, sizeof(**v));
	t = &(*v)[*n];
	*t = (struct vfm_foreign_tensor){.name = name, .ndim = ndim, .numel = vfm_shape_numel(ndim, shape)};
	memcpy(t->shape, shape, sizeof(*shape) * (size_t)ndim);
	return (*n)++;
}

/* Maps elements [a, a + n) of our tensors from `ours` on to those from b on of their tensors from `theirs` on. */
static void map_elements(struct expansion *e, int ours, int theirs, int64_t a, int64_t b, int64_t n)
{
	struct vfm_foreign_map *map = e->map;

	while (n > 0) {
		int o = ours, t = theirs;
		int64_t i = a, k = b, len;

		for (; i >= map->ours[o].numel; o++)
			i -= map->ours[o].numel;
		for (; k >= map->theirs[t].numel; t++)
			k -= map->theirs[t].numel;
		len = map->ours[o].numel - i < map->theirs[t].numel - k ? map->ours[o].numel - i
									: map->theirs[t].numel - k;
		if (len > n)
			len = n;
		vfm_grow(&map->copy, &e->copies_cap, map->n_copies + 1, sizeof(*map->copy));
		map->copy[map->n_copies++] = (struct vfm_foreign_copy){o, t, i, k, len};
		a += len;
		b += len;
		n -= len;
	}
}

/* Returns the row of theirs that is our row `at` of a part whose pairs rotate (rope_halves). */
static int64_t half_row(int64_t head_dim, int64_t at)
{
	const int64_t j = at % head_dim;

	return at - j + j / 2 + j % 2 * (head_dim / 2);
}

/* Maps a row with rotated parts; rows: of all our tensors. */
static void map_rotated(
	struct expansion *e, const struct vfm_foreign_row *r, int ours, int theirs, int64_t numel, int64_t rows)
{
	const int64_t part = rows / r->parts, width = numel / rows, turned = r->rope_halves * part;

	for (int64_t i = 0; i < turned; i++)
		map_elements(e, ours, theirs, i * width, half_row(vfm_model_head_dim(e->m), i) * width, width);
	map_elements(e, ours, theirs, turned * width, turned * width, numel - turned * width);
}

/* Maps our tensors from `ours` to the last to columns of their tensor, one after another. */
static void map_columns(struct expansion *e, int ours, int theirs)
{
	const struct vfm_foreign_map *map = e->map;
	const int64_t rows = map->theirs[theirs].shape[0], width = map->theirs[theirs].shape[1];
	int64_t at = 0;

	for (int i = ours, n = map->n_ours; i < n; i++) {
		const int64_t columns = map->ours[i].shape[1];

		for (int64_t r = 0; r < rows; r++)
			map_elements(e, i, theirs, r * columns, r * width + at, columns);
		at += columns;
	}
}

/* Maps the tensors of a row, from the indices ours and theirs on; numel: of all ours. */
static void map_row(struct expansion *e, const struct vfm_foreign_row *r, int ours, int theirs, int64_t numel)
{
	const struct vfm_model_spec *m = e->m;
	int64_t features = vfm_model_patch_dim(m), row = numel / features, volume = features / m->channels;

	if (r->channels_last) {
		for (int64_t c = 0; c < m->channels; c++)
			for (int64_t i = 0; i < volume; i++)
				map_elements(e, ours, theirs, (c * volume + i) * row, (i * m->channels + c) * row, row);
		return;
	}
	if (r->per_head && vfm_model_arch(m)->foreign->layout[e->layout].by_head) {
		row = numel / r->per_head / m->heads;
		for (int64_t p = 0; p < r->per_head; p++)
			for (int64_t h = 0; h < m->heads; h++)
				map_elements(
					e, ours, theirs, (p * m->heads + h) * row, (h * r->per_head + p) * row, row);
		return;
	}
	if (r->swapped & 1U << e->layout) {
		map_elements(e, ours, theirs, 0, numel / 2, numel / 2);
		map_elements(e, ours, theirs, numel / 2, 0, numel / 2);
		return;
	}
	if (r->columns) {
		map_columns(e, ours, theirs);
		return;
	}
	if (r->rope_halves) {
		map_rotated(e, r, ours, theirs, numel, numel / e->map->ours[ours].numel * e->map->ours[ours].shape[0]);
		return;
	}
	map_elements(e, ours, theirs, 0, 0, numel);
}

/* Sets the shape of each of their tensors from those of ours, [ours, n_ours) of the map, unless the row gives it. */
static int their_shape(const struct expansion *e, const struct vfm_foreign_row *r, int ours, bool bias, int64_t *form)
{
	const struct vfm_foreign_tensor *t = &e->map->ours[ours];
	const int d = r->columns;

	if (r->form && !bias)
		return read_shape(r->form, e->m, form);
	memcpy(form, t->shape, sizeof(*form) * (size_t)t->ndim);
	for (int i = ours + 1; i < e->map->n_ours; i++)
		form[d] += e->map->ours[i].shape[d];
	form[d] /= count_names(r->theirs[e->layout]);
	return t->ndim;
}

/* Adds the tensors of a row, with ".weight", ".bias" or "" after their names; of block i. */
static void expand_row(struct expansion *e, const struct vfm_foreign_row *r, int64_t i, const char *suffix)
{
	struct vfm_foreign_map *map = e->map;
	bool bias = !strcmp(suffix, ".bias");
	const int ours = map->n_ours, theirs = map->n_theirs, block = (int)(i + blocks_of_row(e->m, r).first);
	const char *rest = r->ours, *list = r->theirs[e->layout], *shapes = r->shape;
	int64_t form[VFM_NDIM_MAX], numel = 0;
	int n_form;
	size_t len;

	for (const char *p = rest; p; p = rest) {
		int64_t shape[VFM_NDIM_MAX] = {0};
		int ndim = read_shape(shapes, e->m, shape), at;
		const char *next = strchr(shapes, '|');

		shapes = next ? next + 1 : shapes;
		rest = next_in_list(p, &len);
		at = add_foreign_tensor(&map->ours, &map->n_ours, &e->ours_cap,
			expand_name(&map->arena, p, len, block, suffix), bias ? 1 : ndim, shape);
		numel += map->ours[at].numel;
	}
	n_form = their_shape(e, r, ours, bias, form);
	for (const char *p = list; p; p = rest) {
		rest = next_in_list(p, &len);
		add_foreign_tensor(&map->theirs, &map->n_theirs, &e->theirs_cap,
			expand_name(&map->arena, p, len, (int)i, suffix), n_form, form);
	}
	map_row(e, r, ours, theirs, numel);
}

void vfm_foreign_expand(struct vfm_foreign_map *map, const struct vfm_model_spec *m, int layout)
{
	struct vfm_model_spec copy = *m;
	struct expansion e = {.map = map, .m = m, .layout = layout};

	*map = (struct vfm_foreign_map){0};
	for (const struct vfm_foreign_row *r = vfm_model_arch(m)->foreign->rows; r->ours; r++) {
		const int64_t n = blocks_of_row(m, r).n;

		if (!r->theirs[layout] || (r->needs && !*vfm_foreign_dim(&copy, r->needs)))
			continue;
		for (int64_t i = 0; i < n; i++) {
			expand_row(&e, r, i, r->linear ? ".weight" : "");
			if (r->linear && !r->no_bias)
				expand_row(&e, r, i, ".bias");
		}
	}
}

bool vfm_foreign_left_out(const struct vfm_model_spec *m, int layout, const char *name)
{
	struct vfm_model_spec copy = *m;

	for (const struct vfm_foreign_row *r = vfm_model_arch(m)->foreign->rows; r->ours; r++) {
		const char *theirs = r->theirs[layout];
		const size_t len = theirs ? strlen(theirs) : 0;

		if (r->optional && theirs && !*vfm_foreign_dim(&copy, r->needs) && !strncmp(name, theirs, len) &&
			(!strcmp(name + len, ".weight") || !strcmp(name + len, ".bias")))
			return true;
	}
	return false;
}

static int copy_order(const void *a, const void *b)
{
	const struct vfm_foreign_copy *x = a, *y = b;

	if (x->theirs != y->theirs)
		return x->theirs < y->theirs ? -1 : 1;
	return (x->b > y->b) - (x->b < y->b);
}

size_t *vfm_foreign_order_copies(struct vfm_foreign_map *map)
{
	size_t *first = vfm_calloc((size_t)map->n_theirs + 1, sizeof(*first));

	if (map->n_copies)
		qsort(map->copy, map->n_copies, sizeof(*map->copy), copy_order);
	for (size_t k = map->n_copies; k-- > 0;)
		first[map->copy[k].theirs] = k;
	first[map->n_theirs] = map->n_copies;
	return first;
}

void vfm_foreign_map_release(struct vfm_foreign_map *map)
{
	free(map->ours);
	free(map->theirs);
	free(map->copy);
	vfm_arena_release(&map->arena);
	*map = (struct vfm_foreign_map){0};
}

/* ---- dimensions ---- */

void vfm_foreign_begin(struct vfm_model_spec *m, const struct vfm_arch *a)
{
	vfm_model_defaults(m);
	snprintf(m->arch, sizeof(m->arch), "%s", a->name);
	m->pos = a->pos;
	m->layers = m->hidden = m->heads = m->ffn = m->channels = m->text_dim = m->text_len = 0;
	memset(m->patch, 0, sizeof(m->patch));
	if (a->foreign->image_len)
		m->image_len = a->foreign->image_len;
	memset(m->rope_scale, 0, sizeof(m->rope_scale));
	if (a->foreign->rope_theta > 0)
		m->rope_theta = a->foreign->rope_theta;
	if (a->text == VFM_TEXT_REFINER)
		m->refiner_layers = 0;
	if (a->foreign->fixed_patch)
		memcpy(m->patch, a->foreign->patch, sizeof(m->patch));
	m->text_pad = a->foreign->text_pad;
}

static int assume_heads(struct vfm_model_spec *m, const struct vfm_foreign *f, struct vfm_err *err)
{
	const int64_t known = f->heads ? f->heads : f->head_dim;

	if (m->hidden % known)
		return vfm_fail(err, VFM_EUSAGE,
			"neither config.json nor the tensors give model.heads; %s%lld%s, as in the published models, "
			"do not "
			"divide model.hidden %lld; -c FILE gives model.heads",
			f->heads ? "" : "heads of ", (long long)known, f->heads ? " heads" : " features",
			(long long)m->hidden);
	m->heads = f->heads ? known : m->hidden / known;
	return 0;
}

/* Moves the channels of the input after the latents to the keys that count them. */
static int split_inputs(struct vfm_model_spec *m, struct vfm_err *err)
{
	const int64_t more = m->cond_channels - m->channels;

	if (more < 0)
		return vfm_fail(err, VFM_EUSAGE, "the input has %lld channels, the output %lld",
			(long long)m->cond_channels, (long long)m->channels);
	m->cond_channels = more;
	if (vfm_model_arch(m)->given == VFM_GIVEN_CLEAN)
		return 0;
	m->cond_channels = 0;
	if (vfm_model_predicts_given(m) && more != m->channels + 1)
		return vfm_fail(err, VFM_EUSAGE,
			"the input has %lld channels after the latents; expected those of given frames and a mask, "
			"%lld",
			(long long)more, (long long)m->channels + 1);
	if (vfm_model_predicts_given(m))
		return 0;
	if (more < 1 || more > 2)
		return vfm_fail(err, VFM_EUSAGE, "the input has %lld channels after the latents; expected 1 or 2 masks",
			(long long)more);
	m->mask_channels = more;
	return 0;
}

static bool is_preset(const struct vfm_model_spec *m, const struct vfm_preset *p)
{
	const int64_t masks = p->mask_channels ? p->mask_channels : 2;

	return p->layers == m->layers && p->hidden == m->hidden && p->text_proj == m->text_proj &&
		(vfm_model_arch(m)->given != VFM_GIVEN_MASK || masks == m->mask_channels);
}

/* Sets what no file gives of the rotary positions to that of the preset with these dimensions. */
static int assume_preset(struct vfm_model_spec *m, struct vfm_err *err)
{
	static const char *const keys[] = {"model.rope_scale", "model.rope_axes"};
	const struct vfm_arch *a = vfm_model_arch(m);
	const bool unknown[] = {m->rope_scale[0] == 0, m->rope_axes[0] == 0};
	const struct vfm_preset *p = a->presets;

	while (p->name && !is_preset(m, p))
		p++;
	for (int k = 0; k < 2; k++)
		if (unknown[k] && !p->name && vfm_arch_lists_key(a, keys[k]))
			return vfm_fail(err, VFM_EUSAGE,
				"neither config.json nor the tensors give %s, and no published model has these "
				"dimensions; -c FILE gives it",
				keys[k]);
	for (int i = 0; i < 3; i++) {
		if (unknown[0])
			m->rope_scale[i] = p->name && p->rope_scale[i] > 0 ? p->rope_scale[i] : 1;
		if (unknown[1] && p->name)
			m->rope_axes[i] = p->rope_axes[i];
	}
	return 0;
}

int vfm_foreign_finish(struct vfm_model_spec *m, const struct vfm_foreign *f, struct vfm_err *err)
{
	static const char *const keys[] = {
		"model.layers", "model.hidden", "model.channels", "model.ffn", "model.text_dim"};
	const char *key;
	int64_t dims[5];

	if (m->layers)
		m->layers += m->single_layers;
	if (!m->text_dim) { /* no layer embeds the text */
		m->text_dim = m->text_proj;
		m->text_proj = 0;
	}
	memcpy(dims, (int64_t[]){m->layers, m->hidden, m->channels, m->ffn, m->text_dim}, sizeof(dims));
	for (int i = 0; i < 3; i++)
		m->patch[i] = m->patch[i] ? m->patch[i] : f->patch[i];
	for (int i = 0; i < 5; i++)
		if (!dims[i])
			return vfm_fail(err, VFM_EUSAGE, NOT_GIVEN, keys[i]);
	TRY(split_inputs(m, err));
	if (m->rope_scale[0] == 0)
		TRY(assume_preset(m, err));
	if (!m->text_len)
		m->text_len = f->text_len;
	if (m->image_pos)
		m->image_len = m->image_pos;
	if (!m->heads)
		TRY(assume_heads(m, f, err));
	TRY(vfm_model_check(m, err));
	key = lacking_key(m);
	return key ? vfm_fail(err, VFM_EUSAGE, NOT_GIVEN, key) : 0;
}

static void infer_dims(struct vfm_model_spec *m, const char *form, int parts, int ndim, const int64_t *shape)
{
	for (int d = 0; *form && d < ndim; d++) {
		int64_t factor, *dim;
		char letter;

		form = next_dim(form, &factor, &letter);
		if ((letter == 'F' || letter == 'P') && m->patch[0] && m->patch[1] && m->patch[2]) {
			letter = letter == 'F' ? 'C' : 'X';
			factor *= m->patch[0] * m->patch[1] * m->patch[2];
		}
		dim = letter ? vfm_foreign_dim(m, letter) : NULL;
		if (d == 0 && factor % parts == 0)
			factor /= parts;
		else if (d == 0 && parts > 1)
			continue;
		if (dim && *dim == 0 && factor > 0 && shape[d] > 0 && shape[d] % factor == 0)
			*dim = shape[d] / factor;
	}
}

void vfm_foreign_infer(struct vfm_model_spec *m, const struct vfm_foreign_row *r, int layout, const char *name,
	int ndim, const int64_t *shape)
{
	const char *rest = NULL;
	int parts;
	size_t len;

	if (!r->theirs[layout])
		return;
	parts = count_names(r->theirs[layout]);
	for (const char *p = r->theirs[layout]; p; p = rest) {
		char pattern[160];
		int64_t block, *n_blocks;

		rest = next_in_list(p, &len);
		snprintf(pattern, sizeof(pattern), "%.*s%s", (int)len, p, r->linear ? ".weight" : "");
		block = block_of(pattern, name);
		if (block < 0 && strcmp(pattern, name) != 0)
			continue;
		n_blocks = r->count ? vfm_foreign_dim(m, r->count) : &m->layers;
		if (*n_blocks <= block)
			*n_blocks = block + 1;
		if (!strchr(r->shape, '|'))
			infer_dims(m, r->form ? r->form : r->shape, r->form ? 1 : parts, ndim, shape);
	}
}

/* ---- the metadata of an export ---- */

int vfm_foreign_read_meta(struct vfm_model_spec *m, const json_t *model, const char *where, struct vfm_err *err)
{
	json_t *rest = json_copy((json_t *)(uintptr_t)model);
	int rc;

	for (int i = 0; i < N_LETTERS; i++) {
		const char *inferred = key_at_offset(dims_of_letters[i].off);

		if (inferred)
			json_object_del(rest, strchr(inferred, '.') + 1);
	}
	json_object_del(rest, "arch");
	json_object_del(rest, "layers");
	json_object_del(rest, "mask_channels");
	rc = vfm_model_read(m, rest, where, err);
	json_decref(rest);
	return rc;
}

/* ---- what a layout can hold ---- */

/* Returns whether a key of config.json sets the field at `off`. */
static bool has_foreign_key(const struct vfm_foreign_layout *l, enum vfm_foreign_type type, size_t off)
{
	for (const struct vfm_foreign_key *k = l->keys; k->key; k++)
		if (k->type == type && k->off == off)
			return true;
	return false;
}

/* Returns the key of the section "model" whose value the layout cannot express; NULL: none. */
static const char *inexpressible_key(const struct vfm_model_spec *m, int layout)
{
	const struct vfm_foreign *f = vfm_model_arch(m)->foreign;
	const struct vfm_foreign_layout *l = &f->layout[layout];
	struct vfm_model_spec common;

	vfm_foreign_begin(&common, vfm_model_arch(m));
	const struct {
		const char *key;
		bool differs;
	} keys[] = {
		{"model.kv_heads", m->kv_heads && m->kv_heads != m->heads},
		{"model.cross_attention", m->cross_attention != common.cross_attention},
		{"model.pooled_text", m->pooled_text != common.pooled_text},
		{"model.qk_norm", m->qk_norm != common.qk_norm},
		{"model.adaln_lora",
			m->adaln_lora != common.adaln_lora && !has_foreign_key(l, VFM_FOREIGN_INT, OFF(adaln_lora))},
		{"model.pos", m->pos != common.pos},
		{"model.rope_theta",
			m->rope_theta != common.rope_theta && !has_foreign_key(l, VFM_FOREIGN_NUM, OFF(rope_theta))},
		{"model.patch", f->fixed_patch && memcmp(m->patch, f->patch, sizeof(m->patch)) != 0},
		{"model.norm_eps",
			m->norm_eps != common.norm_eps && !has_foreign_key(l, VFM_FOREIGN_NUM, OFF(norm_eps))},
		{"model.ffn",
			m->ffn && m->ffn != 4 * m->hidden && !has_foreign_key(l, VFM_FOREIGN_INT, OFF(ffn)) &&
				!has_foreign_key(l, VFM_FOREIGN_MLP_RATIO, 0)},
	};

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		if (keys[i].differs)
			return keys[i].key;
	return lacking_key(m);
}

int vfm_foreign_find(const struct vfm_model_spec *m, const char *name, int *layout, struct vfm_err *err)
{
	const struct vfm_foreign *f = vfm_model_arch(m)->foreign;
	struct vfm_buf all = {0};
	const char *key;

	if (!f)
		return vfm_fail(err, VFM_EUSAGE, "no other layout of model.arch '%s' is known", m->arch);
	for (*layout = 0; *layout < f->n_layouts; ++*layout) {
		if (!strcmp(f->layout[*layout].name, name) && !f->layout[*layout].import_only)
			break;
		if (!f->layout[*layout].import_only)
			vfm_buf_addf(&all, "%s%s", all.len ? ", " : "", f->layout[*layout].name);
	}
	if (*layout == f->n_layouts)
		vfm_fail(err, VFM_EUSAGE, "model.arch '%s' can be written in the layouts %s, not '%s'", m->arch,
			all.data, name);
	vfm_buf_release(&all);
	if (*layout == f->n_layouts)
		return VFM_EUSAGE;
	key = inexpressible_key(m, *layout);
	if (key)
		return vfm_fail(err, VFM_EUSAGE, "%s: the layout %s cannot express its value", key, name);
	return 0;
}
