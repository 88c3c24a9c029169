#include "harness/reference/sequence_parts.h"

#include <algorithm>
#include <array>

namespace fp8lab::reference_step {

std::vector<std::int64_t> positions(std::int64_t seq, int part, int parts) {
  const std::int64_t length = parts == 1 ? seq : seq / (2 * parts);
  const std::array<std::int64_t, 2> chunks{part, 2 * parts - 1 - part};
  std::vector<std::int64_t> out;
  for (std::size_t i = 0; i < (parts == 1 ? 1 : 2); ++i)
    for (std::int64_t at = 0; at < length; ++at) out.push_back(chunks[i] * length + at);
  return out;
}

Matrix entire_sequences(const SequenceParts& of, const Matrix& own, std::int64_t batch) {
  if (of.parts == 1) return own;
  const std::vector<double> all = of.gather(own.values);
  Matrix entire(own.rows * of.parts, own.cols);
  auto from = all.begin();
  for (int part = 0; part < of.parts; ++part)
    for (const std::int64_t position : positions(entire.rows / batch, part, of.parts)) {
      std::copy_n(from, batch * own.cols, entire.row(position * batch));
      from += batch * own.cols;
    }
  return entire;
}

Matrix own_part(const SequenceParts& of, const Matrix& entire, std::int64_t batch) {
  if (of.parts == 1) return entire;
  Matrix own(entire.rows / of.parts, entire.cols);
  std::int64_t row = 0;
  for (const std::int64_t position : positions(entire.rows / batch, of.part, of.parts)) {
    std::copy_n(entire.row(position * batch), batch * entire.cols, own.row(row));
    row += batch;
  }
  return own;
}

}  // namespace fp8lab::reference_step
