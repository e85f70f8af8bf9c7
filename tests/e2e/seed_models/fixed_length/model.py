import torch


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(input_size=3, hidden_size=7)

    def forward(self, inputs):
        output, (ht, ct) = self.lstm(inputs)
        return output, (ht, ct)
