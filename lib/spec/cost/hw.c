/* hw.c - the table of peak rates from data sheets. */
#include "spec/cost/hw.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

/* Sources: NVIDIA's data sheets; figures with sparsity are halved.
 *   A100 (2021), H100 (2023), H100 NVL, H200, H200 NVL (2024), L4, L40S, A10
 *   DGX B200, GB200, B300, GB300 (2024, 2025), "Blackwell Architecture Technical Brief"
 *   RTX: "Ada" and "RTX Blackwell GPU Architecture", tensor cores with fp32 accumulation; 4090 D: 114 of 128
 *   multiprocessors
 *   H20, H800, A800: published specifications of the boards */
static const struct hw {
	/* "H100 PCIe": words of the device's name, case-insensitive; the first matching row counts */
	const char *words;
	double bf16, f32; /* TFLOP/s without sparsity: matrix products in bf16, plain fp32 */
} list[] = {
	{"A100", 312, 19.5},
	{"A800", 312, 19.5},
	{"H100 PCIe", 756, 51},
	{"H100 NVL", 835.5, 60},
	{"H100", 989.4, 66.9},
	{"H800 PCIe", 756, 51},
	{"H800", 989.4, 66.9},
	{"H200 NVL", 835.5, 60},
	{"H200", 989.4, 66.9},
	{"GH200", 989.4, 66.9},
	{"H20", 148, 44},
	{"GB300", 2500, 80},
	{"B300", 2250, 75},
	{"GB200", 2500, 80},
	{"B200", 2250, 75},
	{"L40S", 362, 91.6},
	{"L4", 121, 30.3},
	{"A10", 125, 31.2},
	{"RTX 4090 Laptop", 0, 0}, /* set by the power limit of each laptop */
	{"RTX 5090 Laptop", 0, 0},
	{"RTX 4090 D", 147.1, 73.5},
	{"RTX 4090", 165.2, 82.6},
	{"RTX 5090", 209.5, 104.8},
};

/* Returns whether `word` [len] is a word of the name: a run of letters and digits. */
static bool has_word(const char *name, const char *word, size_t len)
{
	while (*name) {
		size_t n = 0;

		while (isalnum((unsigned char)name[n]))
			n++;
		if (n == len && !strncasecmp(name, word, len))
			return true;
		name += n ? n : 1;
	}
	return false;
}

static const struct hw *find_hw(const char *name)
{
	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
		const char *w = list[i].words;
		bool all = true;

		for (size_t n; *w && all; w += n + (w[n] == ' ')) {
			n = strcspn(w, " ");
			all = has_word(name, w, n);
		}
		if (all)
			return &list[i];
	}
	return NULL;
}

double vfm_hw_peak(const char *name, enum vfm_dtype t)
{
	const struct hw *h = find_hw(name);

	return !h ? 0 : t == VFM_BF16 || t == VFM_F16 ? h->bf16 : t == VFM_F32 ? h->f32 : 0;
}
