/* Any bytes as the config.json of a model of another program (one letter: the architecture; one digit: the layout), and
 * after a NUL any tensors: lines of a name and a shape.  A model that is accepted is mapped without gaps, and its
 * configuration and shapes give the same model again. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "io/json.h"
#include "spec/model/arch.h"
#include "spec/model/foreign.h"
#include "spec/model/linears.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { TENSORS_MAX = 128, BLOCKS = 16, ELEMENTS = 1 << 24 };

static void must(bool ok)
{
	if (!ok)
		abort();
}

static const struct vfm_arch *arch_of(int n)
{
	const struct vfm_arch *last = NULL;

	for (int i = 0; vfm_archs[i]; i++)
		if (vfm_archs[i]->foreign) {
			last = vfm_archs[i];
			if (n-- == 0)
				break;
		}
	return last;
}

static void infer(struct vfm_model_spec *m, int layout, const struct vfm_foreign_tensor *t, int n)
{
	const struct vfm_foreign *f = vfm_arch_find(m->arch)->foreign;
	const int64_t layers = m->layers;

	for (const struct vfm_foreign_row *r = f->rows; r->ours; r++)
		for (int i = 0; i < n; i++)
			vfm_foreign_infer(m, r, layout, t[i].name, t[i].ndim, t[i].shape);
	if (layers)
		m->layers = layers;
}

/* Reads lines of a name and a shape; returns their number. */
static int read_tensors(struct vfm_foreign_tensor *t, char *text)
{
	char *line, *word, *save = NULL, *more;
	int n = 0;

	for (line = strtok_r(text, "\n", &save); line && n < TENSORS_MAX; line = strtok_r(NULL, "\n", &save)) {
		t[n] = (struct vfm_foreign_tensor){.name = strtok_r(line, " ", &more)};
		while (t[n].name && t[n].ndim < VFM_NDIM_MAX && (word = strtok_r(NULL, " ", &more)) != NULL)
			t[n].shape[t[n].ndim++] = strtol(word, NULL, 10) & 0xffffff;
		n += t[n].name != NULL;
	}
	return n;
}

static int64_t numel(const struct vfm_foreign_tensor *t, int n)
{
	int64_t sum = 0;

	for (int i = 0; i < n; i++)
		sum += t[i].numel;
	return sum;
}

/* Both sides have the elements of the model, and the copies cover theirs. */
static void check_map(struct vfm_foreign_map *map, const struct vfm_model_spec *m)
{
	size_t *first = vfm_foreign_order_copies(map);

	must(numel(map->ours, map->n_ours) == vfm_model_params(m));
	must(numel(map->theirs, map->n_theirs) == vfm_model_params(m));
	for (int i = 0; i < map->n_theirs; i++) {
		int64_t at = 0;

		for (size_t k = first[i]; k < first[i + 1]; k++) {
			must(map->copy[k].b == at);
			at += map->copy[k].n;
		}
		must(at == map->theirs[i].numel);
	}
	free(first);
}

static void check_again(const struct vfm_model_spec *m, int layout, const struct vfm_foreign_map *map)
{
	const struct vfm_foreign *f = vfm_model_arch(m)->foreign;
	json_t *config = vfm_foreign_write_config(m, layout);
	struct vfm_model_spec got;
	struct vfm_err err = {0};

	vfm_foreign_begin(&got, vfm_model_arch(m));
	must(vfm_foreign_read_config(&got, f, layout, config, "config.json", &err) == 0);
	for (int pass = 0; pass < 2; pass++)
		infer(&got, layout, map->theirs, map->n_theirs);
	must(vfm_foreign_finish(&got, f, &err) == 0);
	must(vfm_foreign_check_config(m, layout, config, "config.json", &err) == 0);
	must(got.layers == m->layers && got.hidden == m->hidden && got.heads == m->heads && got.ffn == m->ffn);
	must(got.channels == m->channels && got.cond_channels == m->cond_channels &&
		!memcmp(got.patch, m->patch, sizeof(m->patch)));
	must(got.text_dim == m->text_dim && got.text_proj == m->text_proj && got.text2_dim == m->text2_dim);
	must(got.image_dim == m->image_dim && got.image_pos == m->image_pos && got.refiner_layers == m->refiner_layers);
	must(got.single_layers == m->single_layers && got.guidance_dim == m->guidance_dim);
	json_decref(config);
}

static void read_model(const struct vfm_arch *a, int layout, const json_t *config, char *lines)
{
	struct vfm_foreign_tensor tensors[TENSORS_MAX];
	struct vfm_foreign_map map;
	struct vfm_model_spec m;
	struct vfm_err err;

	vfm_foreign_begin(&m, a);
	if (config && vfm_foreign_read_config(&m, a->foreign, layout, config, "config.json", &err) < 0)
		return;
	infer(&m, layout, tensors, read_tensors(tensors, lines));
	if (vfm_foreign_finish(&m, a->foreign, &err) < 0 || m.layers > BLOCKS || m.refiner_layers > BLOCKS ||
		vfm_model_params(&m) > ELEMENTS)
		return;
	vfm_foreign_expand(&map, &m, layout);
	check_map(&map, &m);
	if (a->foreign->layout[layout].class_name)
		check_again(&m, layout, &map);
	vfm_foreign_map_release(&map);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *end;
	const struct vfm_arch *a;
	json_t *config;
	char *lines;
	size_t n;

	if (size < 2)
		return 0;
	a = arch_of(data[0] % 8);
	end = memchr(data + 2, 0, size - 2);
	n = end ? (size_t)(end - data - 2) : size - 2;
	config = vfm_json_parse((const char *)data + 2, n, "config.json", NULL);
	lines = end ? strndup((const char *)end + 1, (size_t)(data + size - end - 1)) : strdup("");
	read_model(a, data[1] % a->foreign->n_layouts, config, lines);
	json_decref(config);
	free(lines);
	return 0;
}
