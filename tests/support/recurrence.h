// Functions of the recurrent library, for the test programs that are linked with it.

#pragma once

#include <cstdint>

extern "C" {
int recurrence_lanes();
int recurrence_weights();
int recurrence_gates_at_once(int cell);
int recurrence_product_block();
void* recurrence_open_pool(int threads);
void recurrence_wake_pool(void* pool);
void recurrence_close_pool(void* pool);
void* recurrence_open_stack(void* pool, int cell, int64_t layers, int64_t directions, int64_t inputs, int64_t hidden,
                            int64_t projected, const float* const* weights);
int recurrence_multiply_table(void* stack, const float* table, int64_t rows);
void recurrence_close_stack(void* stack);
int recurrence_product(void* pool, int64_t inputs, int64_t outputs, const float* weights, const float* bias,
                       int64_t rows, int64_t steps, const int64_t* lengths, const float* x, int64_t x_row,
                       int64_t x_step, float* y, int64_t y_row, int64_t y_step);
int recurrence_run_batch(void* stack, int64_t rows, int64_t steps, const int64_t* lengths, const int64_t* ids,
                   int64_t table_rows, const float* x, int64_t x_row, int64_t x_step, const float* h_0,
                   const float* c_0, float* y, int64_t y_row, int64_t y_step, float* h_n, float* c_n);
}
