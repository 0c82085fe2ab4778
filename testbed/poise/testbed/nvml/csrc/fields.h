/* fields.h — what the two files about nvmlDeviceGetFieldValues share. */
#ifndef POISE_FIELDS_H
#define POISE_FIELDS_H

#include "library.h"

enum width { U32, U64, I32 };

void put_unsigned(nvmlFieldValue_t *value, uint32_t number);
void put_counter(nvmlFieldValue_t *value, uint64_t number);
uint64_t load_member(const void *base, uint32_t offset, enum width width);

/* A field about NVLinks; NOT_FOUND when the id is none. */
nvmlReturn_t read_link_field(const struct state *state, const struct card_state *card, nvmlFieldValue_t *value);

#endif
